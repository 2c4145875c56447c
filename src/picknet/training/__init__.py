"""The paper's network, rewards and stages, and the runs that train them. The only package that imports PyTorch."""
