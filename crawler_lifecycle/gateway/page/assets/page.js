"use strict";
// Updates a page in the browser: ages of times, and the age of the page itself. The page works without this script.
(() => {
  const root = document.documentElement;
  const shown = document.getElementById("as-of");
  const told = document.getElementById("told");
  const live = document.getElementById("live");
  if (!root.dataset.now) return;
  // Ages use the server's clock, because the browser's clock may be wrong. The browser only measures the time since then.
  let server = Date.parse(root.dataset.now), at = performance.now();
  let asOf = server, changes = 0, outdated = false;
  const now = () => server + (performance.now() - at);

  const UNITS = [["min", 60, "s", 1, 120], ["h", 3600, "min", 60, 48], ["d", 86400, "h", 3600, 1e9]];
  const span = (seconds) => {
    const left = Math.max(Math.trunc(seconds), 0);
    if (left < 120) return `${left} s`;
    const [unit, size, smaller, less] = UNITS.find((one) => left < one[1] * one[4]);
    const rest = Math.floor((left % size) / less);
    return `${Math.floor(left / size)} ${unit}` + (rest && left < 10 * size ? ` ${rest} ${smaller}` : "");
  };
  const age = (moment) => moment > now() ? `in ${span((moment - now()) / 1000)}` : `${span((now() - moment) / 1000)} ago`;

  const AGAIN_MS = 10000;
  let zone = localStorage.getItem("zone") || "UTC";
  const title = (moment) => zone === "UTC" ? moment.toISOString().slice(0, 19).replace("T", " ") + " UTC"
    : `${new Intl.DateTimeFormat("sv", {dateStyle: "short", timeStyle: "medium", timeZone: zone}).format(moment)} ${zone}`;
  const write = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  // The server writes titles in UTC.
  const draw = (titles = zone !== "UTC") => {
    for (const one of document.querySelectorAll("time[datetime]")) {
      const moment = new Date(one.dateTime);
      write(one, one.hasAttribute("data-for") ? span((now() - moment) / 1000) : age(moment));
      if (!titles) continue;
      const words = title(moment);
      if (one.title !== words) one.title = words;
    }
    const late = (now() - asOf) / 1000;
    const old = live && (late > 8 || outdated);
    shown.classList.toggle("warn", old);
    write(shown, outdated ? "This page is out of date: load it again." : `As of ${span(late)} ago${old ? ": no updates arrive" : ""}`);
  };
  // A message for screen readers, at most every ten seconds.
  const tell = () => {
    const late = (now() - asOf) / 1000;
    if (live && late > 8) write(told, `No updates for ${span(late)}`);
    else if (changes) write(told, changes === 1 ? "One change" : `${changes} changes`);
    changes = 0;
  };

  let later = 0;
  const again = () => {
    const busy = document.activeElement?.matches("input:not([type=checkbox]), textarea, select")
      || document.querySelector("input[name=run]:checked");
    // If two gateways have different builds, the page could otherwise reload for ever.
    const wait = Math.min(Number(sessionStorage.getItem("begun")) - Date.now(), 0) + AGAIN_MS;
    outdated = busy || wait > 0;
    if (busy) return;
    if (wait > 0) { later ||= setTimeout(() => { later = 0; again(); }, wait); return; }
    sessionStorage.setItem("begun", Date.now());
    location.reload();
  };
  const heard = (event) => {
    const data = JSON.parse(event.detail.data);
    server = Date.parse(data.now);
    at = performance.now();
    if (data.as_of) asOf = Date.parse(data.as_of);
    if (data.build !== root.dataset.build) again();
    draw();
  };
  if (live) {
    live.addEventListener("hello", heard);
    live.addEventListener("tick", heard);
    live.addEventListener("gone", () => { outdated = true; draw(); });
    // A chosen run stays on the list, even if newer runs would replace it.
    live.addEventListener("htmx:sse:before:message", ({detail: {message}}) => {
      if (message.event || !message.data.includes('hx-target="#main"')) return;
      const chosen = [...document.querySelectorAll("#runs > tr:has(input:checked)")]
        .filter((row) => !message.data.includes(` id="${row.id}"`)).map((row) => row.outerHTML);
      message.data = message.data.replace("</tbody>", (end) => chosen.join("") + end);
    });
    live.addEventListener("htmx:sse:error", (event) => { if (event.detail.status === 401) location.reload(); });
    live.addEventListener("htmx:sse:after:message", (event) => {
      const message = event.detail.message;
      if (message.event) return;
      changes += message.data.split("<hx-partial").length - 1;
      asOf = now();
      draw();
    });
    // A hidden tab has no stream, because a browser has only six connections to us for all tabs. The extension notices
    // a tab that becomes hidden, but not a tab that is opened hidden, or that becomes hidden while it connects.
    const connect = () => {
      if (document.hidden || live.hasAttribute("hx-sse:connect")) return;
      live.setAttribute("hx-sse:connect", live.dataset.stream);
      htmx.process(live);
    };
    live.addEventListener("htmx:sse:after:connection", () => setTimeout(() => {
      if (document.hidden) document.dispatchEvent(new Event("visibilitychange"));
    }));
    document.addEventListener("visibilitychange", connect);
    // htmx starts in an earlier timeout. It would connect an element a second time if that is already connecting.
    setTimeout(connect);
  }

  const every = document.getElementById("every");
  if (every) {
    root.classList.add("scripted");
    every.addEventListener("change", () => {
      for (const one of document.querySelectorAll("input[name=run]")) one.checked = every.checked;
    });
  }

  const zones = document.createElement("select");
  const offer = (names) => zones.append(...names.map((name) => new Option(name, name, false, name === zone)));
  offer([...new Set(["UTC", zone, Intl.DateTimeFormat().resolvedOptions().timeZone])]);
  // The other time zones are added later: there are hundreds, and few people need them.
  zones.addEventListener("focus", () => {
    offer(Intl.supportedValuesOf("timeZone").filter((name) => ![...zones.options].some((one) => one.value === name)));
  }, {once: true});
  zones.addEventListener("change", () => {
    zone = zones.value;
    localStorage.setItem("zone", zone);
    draw(true);
  });
  const label = document.createElement("label");
  label.append("Times in ", zones);
  document.querySelector("footer").append(label);

  draw();
  setInterval(() => draw(), 1000);
  setInterval(tell, 10000);
})();
