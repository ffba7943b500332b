"""Red team: run a corpus of attacks against the grader, each wrapped around an honest implementation of a task.

corpus.py      what an attack file says of itself; read without executing it
submission.py  the text of a submission made of an attack and an honest implementation
campaign.py    grade it, look for traces it left outside, and judge the outcome
"""
