import pathlib
import sys

# This folder is a package; Python put the folder itself on the path.
sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from releasing.command import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
