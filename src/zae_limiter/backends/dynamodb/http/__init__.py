"""The transport without a driver: signed requests over connections that are kept.

Reading order: ``signing`` and ``http1`` (bytes, pure), ``endpoint`` and ``credentials`` (what botocore
knows), ``pool``, ``transport`` (a call), then what differs between the colours, a *network*: ``blocking`` for
threads, and ``loop``, which alone knows asyncio.
"""
