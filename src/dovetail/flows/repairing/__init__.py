"""Why two parts do not fit, and what each repair would give and cost."""
