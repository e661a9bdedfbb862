"""What each rank did by itself between two calls, against what others do at the same place.

``segments`` has how long it took. The rest says why it took longer: on cores that were not free,
on larger inputs, with operators that the others do not run.
"""
