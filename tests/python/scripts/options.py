"""A script with arguments, a module beside it and an exit status."""

import argparse
import os
import pickle
import sys

import beside
import torch


class Mine:
    pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--status", type=int, default=0)
    options = parser.parse_args()
    assert sys.path[0] == os.path.dirname(__file__) and sys.modules["__main__"].main is main
    assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)
    print(beside.double(torch.ones(2)).tolist(), options)
    return options.status


if __name__ == "__main__":
    sys.exit(main())
