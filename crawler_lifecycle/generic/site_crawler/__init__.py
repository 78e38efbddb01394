"""The crawler ``site``: arguments and addresses in ``scope``, the walk in ``spider``, what it leaves in ``files``."""
