"""Control operations: carried out and audited for both protocols."""
