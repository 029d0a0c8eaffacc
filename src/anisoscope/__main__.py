"""python -m anisoscope"""

from anisoscope.cli import main

if __name__ == "__main__":
    main()
