"""The crawler ``site``: arguments and addresses in ``scope``, the walk in ``spider``, output in ``files``."""
