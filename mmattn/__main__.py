"""Run the console command: `python -m mmattn`."""

from mmattn.cli.main import main

if __name__ == '__main__':
    main()
