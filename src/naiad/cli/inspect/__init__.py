"""What model files say of themselves, read without executing anything in them and without their frameworks."""
