"""What programs for the established zae-limiter say and expect, where this package says it otherwise.

Thin forms over what is here: values that also read as the dicts they used to be, names and properties that
were called otherwise, answers that may be awaited, and options that are gone with what took their place.
Nothing of it decides anything, and nothing in the core needs it. A later major version drops this package
with the lines that import it; ``docs/migrating.md`` lists what is kept and what differs on purpose.
"""
