"""What runs inside a warm sandbox. Its text is sent there; it needs nothing but Python 3.8.

Who: root of a warm sandbox, the zygote. It imports what calls are likely to need and
then forks one worker for each call. What the worker is asked for is read by the worker
itself, so that nothing of one call is in the memory of the next.
"""
