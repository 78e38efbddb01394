"""The registration of this feature."""

from crawler_lifecycle.features.feature import Feature

USER_CODE = Feature("user_code", activities="compose:activities")
