"""All that runs inside a rank. It imports the standard library, torch and `distprof.run` only.

Two rules hold in every line: never change the training, never raise into it.
"""
