"""The transport without a driver: signed requests over connections that are kept.

Reading order: ``signing`` and ``http1`` (bytes, pure), ``target`` and ``identity`` (what botocore knows),
``pool``, ``transport`` (a call), then the two wires: ``lanes`` and ``blocking`` for threads, ``loop`` for
event loops. ``loop`` is the only module here that knows asyncio, as a driver must.
"""
