"use strict";
// Updates a page in the browser: ages of times, and a bar when there is no news. The page works without this script, so it is
// painted first: whatever begins at once would come before that. Styles that depend on scripts are in the first paint.
document.documentElement.classList.add("scripted");
// Streams come through a worker that all windows share, or directly if the browser or the gateway has none.
(() => {
  const direct = window.fetch.bind(window), name = document.querySelector("meta[name=streams]")?.content;
  const streams = new Map(), encoder = new TextEncoder();
  let port = null, last = 0, broken = !name || !window.SharedWorker;
  const connect = () => {
    const worker = new SharedWorker(name);
    worker.addEventListener("error", () => { broken = true; for (const hear of [...streams.values()]) hear({away: true}); });
    port = worker.port;
    port.onmessage = ({data}) => {
      if (data.ping) port.postMessage({});
      else streams.get(data.n)?.(data);
    };
  };
  addEventListener("pagehide", () => { port?.postMessage({bye: true}); });
  const shared = (url, init) => new Promise((answer, fail) => {
    if (!port) connect();
    const n = last += 1;
    let body = null;
    const cut = (error) => { streams.delete(n); fail(error); body?.error(error); };
    const stop = () => { if (streams.delete(n)) port.postMessage({stop: n}); };
    init.signal?.addEventListener("abort", () => {
      if (!streams.has(n)) return;
      stop();
      cut(new DOMException("The stream was stopped.", "AbortError"));
    });
    streams.set(n, ({away, status, type, first, text, error, end}) => {
      if (away) { streams.delete(n); direct(url, init).then(answer, fail); }
      else if (status) answer(new Response(new ReadableStream({start: (made) => { body = made; }, cancel: stop}),
        {status, headers: {"Content-Type": type, ...(first && {"X-Log-First": first})}}));
      else if (text) body.enqueue(encoder.encode(text));
      else if (end) { streams.delete(n); body?.close(); }
      else cut(new TypeError(error));
    });
    port.postMessage({n, url: String(url), seen: init.headers?.["Last-Event-ID"] ?? ""});
  });
  window.fetch = (url, init = {}) => {
    const flows = !broken && typeof url === "string" && (url.startsWith("/page/events?") || url.includes("follow=true"));
    return flows ? shared(url, init) : direct(url, init);
  };
})();
requestAnimationFrame(() => setTimeout(() => {
  const root = document.documentElement;
  const shown = document.getElementById("as-of");
  const told = document.getElementById("told");
  const live = document.getElementById("live");
  const bar = document.getElementById("bar");
  if (!root.dataset.now) return;
  // Ages use the server's clock, because the browser's clock may be wrong. The browser only measures the time since then.
  // A tab that was opened behind others begins here only when it is in front.
  let server = Date.parse(root.dataset.now), at = performance.getEntriesByType("navigation")[0].responseStart;
  let asOf = server, changes = 0, outdated = false, gone = false, ended = "", away = "", stale = false, said = "";
  // The last message, the time of the last one without problems, and since when the tab is in front.
  let heardAt = at, wellAt = null, shownAt = -Infinity;
  // A page as old as OLD_MS is stale even if messages come: the gateway may be too slow to render it again.
  const SILENT_MS = 5000, OLD_MS = 15000, LOGIN_MS = 30000, CONNECT_MS = 10000;
  const silent = (since) => performance.now() - since > SILENT_MS;
  if (silent(at)) shownAt = performance.now(); // the tab was in the background, and has no news yet
  // Ages of a stale page stand still at its last news.
  const now = () => stale ? asOf : server + (performance.now() - at);

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

  const when = (moment) => {
    const [words, today] = [moment, server + (performance.now() - at)].map((one) => title(new Date(one)));
    return words.slice(0, 10) === today.slice(0, 10) ? words.slice(11) : words;
  };
  // The text changes only with its cause, so that screen readers read it once.
  const warn = () => {
    const since = wellAt ?? (away ? null : asOf);
    const text = !stale || document.hidden || !silent(shownAt) ? ""
      : ended ? `${ended} What you see is as of ${when(asOf)}. `
      : outdated || gone ? "This page is out of date: reload it."
      : `No news${since ? ` since ${when(since)}` : ""}${away && `: ${away}`}. What you see may be old.`;
    if (text === said) return;
    if (said && !stale) write(told, "This page is up to date again.");
    bar.textContent = said = text;
    if (!text || !ended) return;
    const link = document.createElement("a");
    Object.assign(link, {href: `/login?next=${encodeURIComponent(location.pathname + location.search)}`, target: "_blank", rel: "noopener"});
    link.textContent = "Log in again in a new tab";
    bar.append(link);
  };

  // The server writes titles in UTC.
  let wall = Date.now(), tick = at;
  const draw = (titles = zone !== "UTC") => {
    // A computer that slept: its timers stood still, its clock did not.
    if (Date.now() - wall - (performance.now() - tick) > SILENT_MS) heardAt = -Infinity;
    wall = Date.now();
    tick = performance.now();
    stale = false;
    stale = !!live && (!!ended || outdated || gone || !!away || silent(heardAt) || now() - asOf > OLD_MS);
    root.classList.toggle("stale", stale);
    for (const one of document.querySelectorAll("time[datetime]")) {
      const moment = new Date(one.dateTime);
      write(one, one.hasAttribute("data-for") ? span((now() - moment) / 1000) : age(moment));
      if (!titles) continue;
      const words = title(moment);
      if (one.title !== words) one.title = words;
    }
    write(shown, stale ? `As of ${when(asOf)}` : `As of ${span((now() - asOf) / 1000)} ago`);
    if (bar) warn();
  };
  // A message for screen readers, at most every ten seconds.
  const tell = () => {
    if (changes) write(told, changes === 1 ? "One change" : `${changes} changes`);
    changes = 0;
  };

  let later = 0;
  const again = () => {
    const busy = document.activeElement?.matches("input:not([type=checkbox]), textarea, select")
      || document.querySelector(".pick input:checked");
    // If two gateways have different builds, the page could otherwise reload forever.
    const wait = Math.min(Number(sessionStorage.getItem("begun")) - Date.now(), 0) + AGAIN_MS;
    outdated = busy || wait > 0;
    if (busy) return;
    if (wait > 0) { later ||= setTimeout(() => { later = 0; again(); }, wait); return; }
    sessionStorage.setItem("begun", Date.now());
    location.reload();
  };
  const heard = (event) => {
    const data = JSON.parse(event.detail.data);
    const before = said;
    server = Date.parse(data.now);
    at = heardAt = performance.now();
    if (data.as_of) asOf = Date.parse(data.as_of);
    away = data.away || ""; // a gateway of another build may not report it
    if (!away) wellAt = asOf;
    ended = "";
    outdated = false;
    if (data.build !== root.dataset.build) again();
    draw();
    if (before && !said) document.dispatchEvent(new Event("page:news"));
  };
  if (live) {
    live.addEventListener("hello", heard);
    live.addEventListener("tick", heard);
    live.addEventListener("gone", () => { gone = true; draw(); });
    // A selected row stays on the list, even if newer ones would replace it.
    live.addEventListener("htmx:sse:before:message", ({detail: {message}}) => {
      if (message.event || !message.data.includes('hx-target="#main"')) return;
      const chosen = [...document.querySelectorAll("#selection tbody > tr:has(.pick input:checked)")]
        .filter((row) => !message.data.includes(` id="${row.id}"`)).map((row) => row.outerHTML);
      message.data = message.data.replace("</tbody>", (end) => chosen.join("") + end);
    });
    const REFUSED = {401: "Your session has ended.", 403: "You may no longer read this page."};
    const refused = (status) => { ended = REFUSED[status] || ended; draw(); };
    live.addEventListener("htmx:sse:error", ({detail: {connection, status}}) => {
      refused(status);
      if (!connection) return;
      connection.config.reconnectMaxDelay = ended ? LOGIN_MS : SILENT_MS;
      if (status) connection.abortController.abort(); // nobody reads its body, which would hold a connection
    });
    live.addEventListener("htmx:sse:after:message", (event) => {
      const message = event.detail.message;
      if (message.event) return;
      changes += message.data.split("<hx-partial").length - 1;
      draw();
    });
    // A hidden tab has no stream, because a browser has only six connections to us for all tabs. The extension notices
    // a tab that becomes hidden, but not a tab that is opened hidden, or that becomes hidden while it connects.
    let ready = false;
    const connect = () => {
      if (!ready || document.hidden || live.hasAttribute("hx-sse:connect")) return;
      live.setAttribute("hx-sse:connect", live.dataset.stream);
      htmx.process(live);
    };
    live.addEventListener("htmx:sse:after:connection", () => setTimeout(() => {
      if (document.hidden) document.dispatchEvent(new Event("visibilitychange"));
    }));
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) return;
      shownAt = performance.now();
      connect();
      draw();
      setTimeout(() => live._htmx?.sse?.delayCanceller?.());
    });
    // They are fetched now, so that nothing is fetched in parallel with what the first paint needs.
    const late = document.querySelector("meta[name=late]").content.trim().split(" ").map((src) =>
      Object.assign(document.createElement("script"), {src, async: false}));
    // htmx starts in an earlier timeout. It would connect an element a second time if that is already connecting.
    late.at(-1).addEventListener("load", () => setTimeout(() => { ready = true; connect(); }));
    document.head.append(...late);
    // The extension does not repeat a first request that failed, and does not notice a connection that hangs.
    let lost = false, triedAt = 0;
    live.addEventListener("htmx:sse:close", () => { lost = true; });
    live.addEventListener("htmx:finally:request", ({detail: {ctx}}) => {
      lost = !live._htmx?.sse;
      if (lost) refused(ctx.response?.status);
    });
    // The same page at another address, such as after a search: its stream brings all parts. The stream of the address before
    // must have ended first, or its end would be taken for that of the new one.
    const old = (connection) => !connection.url.endsWith(live.dataset.stream);
    const leave = () => live._htmx?.sse?.reader?.cancel();
    live.addEventListener("page:move", () => {
      live.setAttribute("hx-sse:connect", live.dataset.stream);
      leave();
      live._htmx?.sse?.delayCanceller?.();
    });
    live.addEventListener("htmx:sse:before:connection", ({detail: {connection}}) => {
      connection.cancelled = !!connection.attempt && old(connection);
    });
    live.addEventListener("htmx:sse:after:connection", ({detail: {connection}}) => { if (old(connection)) setTimeout(leave); });
    live.addEventListener("htmx:sse:close", ({detail: {connection}}) => {
      if (!old(connection)) return;
      lost = false;
      setTimeout(() => htmx.ajax("GET", live.dataset.stream, {source: live, timeout: CONNECT_MS}));
    });
    setInterval(() => {
      if (document.hidden || performance.now() - Math.max(heardAt, triedAt) < CONNECT_MS) return;
      triedAt = performance.now();
      if (!lost) live._htmx?.sse?.reader?.cancel();
      else htmx.ajax("GET", live.dataset.stream, {source: live, timeout: CONNECT_MS});
      lost = false;
    }, 1000);
  }

  const every = document.getElementById("every");
  if (every) {
    every.addEventListener("change", () => {
      for (const one of document.querySelectorAll("tbody .pick input")) one.checked = every.checked;
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
}));
