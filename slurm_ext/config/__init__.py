"""Settings: one strict YAML file for people, one pushed JSON snapshot for hooks."""
