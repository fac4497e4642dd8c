"""A local AWS for development, without containers: ``zae-limiter local``.

``engines`` knows what can be started, ``service`` starts it, keeps track of it and ends it.
"""
