"""The transport without a driver: signed requests over connections that are kept.

Reading order: ``signing`` and ``http1`` (bytes, pure), ``endpoint`` and ``credentials`` (what botocore
knows), ``network`` (what differs between the colours), ``pool``, ``transport`` (a call), then the networks:
``sync_fanout`` and ``blocking`` for threads, ``loop``, which alone knows asyncio, for event loops.
"""
