"""Networks of other libraries: how to rebuild them, and where their weights lie."""
