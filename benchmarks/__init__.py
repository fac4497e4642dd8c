"""``make bench``: this limiter and its peers, side by side, in one run.

Every contestant runs in a process of its own, with the environment that its own drivers need, and the
rounds of a case alternate between contestants, so that whatever else the machine does hits all of them.
Wall time, client CPU and what the engine bills are measured apart, each where it is not disturbed by
measuring the others.

Reading order: ``cases`` (what is measured), ``worker`` and ``loops`` (how a process measures itself),
``run`` (the order of things), ``figures`` and ``targets`` (what the samples say), ``report`` and ``chart``
(how it is shown). Nothing here is a test: a missed target is printed and the run succeeds, unless
``--judge`` is to fail it for what the published run does not miss so.
"""
