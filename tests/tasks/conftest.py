from hypothesis import settings

# a busy machine is no failure, so examples have no time limit of their own; nor is bad luck, so
# they are the same in every run, and few of those say what many do
settings.register_profile("patient", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("patient")
