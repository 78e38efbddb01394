"""One package per outside system; each implements ports of ``crawler_lifecycle.ports`` and knows no other adapter."""
