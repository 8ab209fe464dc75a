"""Makes the kernels that come with the package (torch_opaque/cache.py): common_kernels.py FOLDER INTO [--optional].

FOLDER has the package torch_opaque with its extension and no kernels. The torch beside which it installs (torch_package.py) need not be where this Python
looks, as pip builds in an environment of its own. With --optional it is told and no error that they cannot be made: a PyTorch for
CUDA, say, cannot be imported everywhere, and kernels that do not come with the package are compiled when they are needed."""

import os
import site
import sys

import torch_package


def main() -> None:
    folder, into, *optional = sys.argv[1:]
    site.addsitedir(os.path.dirname(torch_package.folder()))
    # Of the processes that run the programs, too; what makes pip's environment, a sitecustomize, must not do so again.
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [path for path in own if os.path.exists(os.path.join(path, "sitecustomize.py"))]
    sys.path[:] = [folder, *(path for path in sys.path[1:] if path not in own)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        from torch_opaque import cache

        print(f"{cache.warm(into)} kernels in {into}")
    except (ImportError, OSError) as error:
        if not optional:
            raise
        os.makedirs(into, exist_ok=True)  # what is installed
        print(f"no kernels come with this package: {error}")


if __name__ == "__main__":
    main()
