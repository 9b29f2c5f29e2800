from hypothesis import settings

# a busy machine is no failure, so examples have no time limit of their own
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
