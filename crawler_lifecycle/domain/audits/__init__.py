"""The rules of audits: what is compared, how it is judged, and the ledger of corrections."""
