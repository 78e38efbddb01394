"""Applications that are built for each test share what is made of each route."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any

from fastapi import routing
from fastapi.dependencies.models import Dependant
from starlette import routing as under

from crawler_lifecycle.gateway.access import operations

#: What FastAPI has read from the parameters of a function.
READ = fields(Dependant)


def make_routes_cheap() -> None:
    """Let routes that are added from now on copy what was made of the same function before: models,
    parameters, patterns.

    They make their handler at the first request, because a test calls few of 120. Each test has its
    own application, whose routes are closures over its own parts. What FastAPI reads from them is
    always the same, and takes 30 ms of processor time.
    """
    add = routing.APIRouter.add_api_route
    if hasattr(add, "__wrapped__"):
        return
    compiled = functools.cache(under.compile_path)
    for module in (under, routing, operations):
        module.compile_path = compiled  # type: ignore[attr-defined]
    known: dict[Any, tuple[Any, dict[str, Any], dict[str, Any]]] = {}

    @functools.wraps(add)
    def copying(router: Any, path: str, endpoint: Any, **options: Any) -> None:
        key = path, endpoint.__code__, repr(endpoint.__defaults__)  # a list is not hashable
        given = (
            router.route_class,
            router.prefix,
            list(router.tags),
            list(router.dependencies),  # the router's own list changes while routes are added
            dict(router.responses),
            options,
        )
        made = known.get(key)
        if made is None or made[0] != given:
            add(router, path, endpoint, **options)
            route = router.routes[-1]
            known[key] = (
                given,
                dict(vars(route)),
                {one.name: getattr(route.dependant, one.name) for one in READ},
            )
            return
        route, dependant = (
            object.__new__(router.route_class),
            Dependant(**{**made[2], "call": endpoint}),
        )
        vars(route).update(made[1], endpoint=endpoint, dependant=dependant, app=_lazy(route))
        route.dependency_overrides_provider = router.dependency_overrides_provider
        router.routes.append(route)
        router._mark_routes_changed()

    routing.APIRouter.add_api_route = copying  # type: ignore[assignment, method-assign]


def _lazy(route: Any) -> Any:
    made: list[Any] = []

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if not made:
            made.append(routing.request_response(route.get_route_handler()))
        await made[0](scope, receive, send)

    return serve
