"""What users run beside a server: each tool is a package, over what they share."""
