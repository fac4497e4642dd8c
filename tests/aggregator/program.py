"""The command line's ``aggregate`` as a program of its own."""

from zae_limiter.cli.aggregate import aggregate

if __name__ == "__main__":
    aggregate()
