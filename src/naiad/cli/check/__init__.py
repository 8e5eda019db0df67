"""`naiad check`: report what a server would report about models, without starting one."""
