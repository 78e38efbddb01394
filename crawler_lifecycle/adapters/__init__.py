"""One package or module for each outside system: they implement ports and know no other adapter."""
