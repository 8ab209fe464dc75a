def double(x):
    return (x * 2).relu()
