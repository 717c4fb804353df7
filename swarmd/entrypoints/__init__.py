"""What runs in each worker process. Here rooms meet in a worker, as they meet in node.py in the daemon."""
