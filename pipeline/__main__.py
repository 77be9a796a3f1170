"""`python -m pipeline` is the command `pocketbert`."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
