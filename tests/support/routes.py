"""Applications that are built again and again, for each test, share what is made of each route."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from fastapi import Request, Response, routing


def make_routes_cheap() -> None:
    """Routes that are added from now on copy what was made of the same function before, models and parameters, and make
    their handler when a request comes first: a test asks few of 120.

    Each test has an application of its own, whose routes are closures over its own parts. What FastAPI reads from
    them is the same each time, and takes 30 ms of processor time.
    """
    populate = routing._populate_api_route_state
    if hasattr(populate, "__wrapped__"):
        return
    known: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {}

    @functools.wraps(populate)
    def copying(route: Any, path: str, endpoint: Any, **options: Any) -> None:
        key = path, endpoint.__code__, repr(endpoint.__defaults__)  # a list has no hash
        given = {name: value for name, value in options.items() if name != "dependency_overrides_provider"}
        made = known.get(key)
        if made is None or made[0] != given:
            populate(route, path, endpoint, **options)
            known[key] = given, dict(vars(route))
            return
        vars(route).update(made[1])
        route.endpoint, route.dependant = endpoint, replace(route.dependant, call=endpoint)
        route.dependency_overrides_provider = options.get("dependency_overrides_provider")

    handler_of = routing.APIRoute.get_route_handler

    def lazily(route: routing.APIRoute) -> Any:
        made: list[Any] = []

        async def handle(request: Request) -> Response:
            if not made:
                made.append(handler_of(route))
            response: Response = await made[0](request)
            return response

        return handle

    routing._populate_api_route_state = copying
    routing.APIRoute.get_route_handler = lazily  # type: ignore[method-assign]
