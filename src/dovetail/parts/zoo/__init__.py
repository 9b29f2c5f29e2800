"""Networks of our own; importing one of these files registers its builders."""
