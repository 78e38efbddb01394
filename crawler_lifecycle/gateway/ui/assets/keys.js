"use strict";
// Lists: keys, a search while a person types, the number of selected rows, and views that this browser keeps by name.
// It begins before the first paint, because people can type as soon as they see a list.
(() => {
  const SEARCH = "main [type=search][name=search]";
  const find = (selector) => document.querySelector(selector);
  const rows = () => [...document.querySelectorAll("main tbody tr:has(th a)")];
  const link = (row) => row.querySelector("th a");
  const typing = (element) => element.matches("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]");

  const dialog = (title, ...parts) => {
    const made = document.createElement("dialog"), head = document.createElement("h2"), close = document.createElement("button");
    head.textContent = title;
    head.id = `h-${document.querySelectorAll("dialog").length}`;
    made.setAttribute("aria-labelledby", head.id);
    close.textContent = "Close";
    close.addEventListener("click", () => made.close());
    const end = document.createElement("p");
    end.append(close);
    made.append(head, ...parts, end);
    document.body.append(made);
    return made;
  };

  const KEYS = [["/", "search everything"], ["f", "search this list"], ["j", "next row"], ["k", "previous row"], ["Enter", "open the row"], ["x", "select or deselect the row"],
    ["v", "saved views"], ["Esc", "leave the search, or close this help"], ["?", "this help"]];
  const keys = document.createElement("dl");
  keys.className = "facts";
  for (const [key, does] of KEYS) {
    const name = document.createElement("dt"), text = document.createElement("dd"), kbd = document.createElement("kbd");
    kbd.textContent = key;
    name.append(kbd);
    text.textContent = does;
    keys.append(name, text);
  }
  // People who use speech input, or rest a hand on the keyboard, can turn them off.
  const use = document.createElement("label"), box = document.createElement("input");
  box.type = "checkbox";
  box.checked = localStorage.getItem("keys") !== "off";
  box.addEventListener("change", () => localStorage.setItem("keys", box.checked ? "on" : "off"));
  use.append(box, " Use these keys");
  const help = dialog("Keys", keys, use);

  // Views are addresses, so they are kept as such. Anything else in the storage is not a view.
  const VIEWS_MAX = 50;
  const kept = () => {
    try {
      const found = JSON.parse(localStorage.getItem("views"));
      return Object.entries(found ?? {}).filter(([, query]) => typeof query === "string").slice(0, VIEWS_MAX);
    } catch { return []; }
  };
  const keep = (views) => { localStorage.setItem("views", JSON.stringify(Object.fromEntries(views))); draw(); };
  const shown = document.createElement("ul"), form = document.createElement("form"), name = document.createElement("input");
  shown.className = "kept";
  const draw = () => {
    shown.replaceChildren(...kept().map(([word, query]) => {
      const item = document.createElement("li"), to = document.createElement("a"), drop = document.createElement("button");
      to.href = query.startsWith("/") ? query : `/runs${query && `?${query}`}`;
      to.textContent = word;
      drop.textContent = "Remove";
      drop.setAttribute("aria-label", `Remove ${word}`);
      drop.addEventListener("click", () => keep(kept().filter(([other]) => other !== word)));
      item.append(to, " ", drop);
      return item;
    }));
  };
  const label = document.createElement("label"), save = document.createElement("button");
  name.maxLength = 60;
  name.required = true;
  save.textContent = "Save this view";
  label.append("Name ", name);
  form.append(label, " ", save);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = new URLSearchParams(location.search);
    asked.delete("page_token");
    keep([...kept().filter(([word]) => word !== name.value), [name.value, `${location.pathname}?${asked}`]]);
    name.value = "";
  });
  const views = dialog("Views in this browser", shown, form);
  const show = (one) => { if (one === views) draw(); one.showModal(); };

  const go = (step) => {
    const all = rows(), at = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
    if (!next) return;
    link(next).focus({preventScroll: true});
    next.scrollIntoView({block: "nearest"});
  };
  const choose = () => document.activeElement.closest("tbody tr")?.querySelector(".pick input")?.click();
  const DOES = {"/": () => find("#find")?.focus(), f: () => find("main [type=search], main form.filters input")?.focus(), j: () => go(1), k: () => go(-1), x: choose,
    "?": () => show(help), v: () => find("#keep") && show(views)};
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    // Browsers would empty the field.
    if (event.key === "Escape" && event.target.matches(`#find, ${SEARCH}`)) { event.preventDefault(); return event.target.blur(); }
    if (!box.checked || typing(event.target) || find("dialog[open]") || !Object.hasOwn(DOES, event.key)) return;
    event.preventDefault();
    DOES[event.key]();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("#keep")) return show(views);
    // A menu closes when somebody clicks outside it.
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  const number = () => {
    const chosen = document.querySelectorAll("tbody .pick input:checked").length, count = find("#count");
    if (count) count.textContent = chosen ? `${chosen} selected` : "";
  };
  document.addEventListener("change", number);

  const live = find("#live"), WAIT_MS = 200;
  let later = 0;
  document.addEventListener("input", (event) => {
    if (!event.target.matches(SEARCH) || event.isComposing || !live) return;
    clearTimeout(later);
    later = setTimeout(() => {
      const asked = new URLSearchParams(location.search);
      for (const one of ["page_token", "page", "all", "search"]) asked.delete(one);
      if (event.target.value.trim()) asked.set("search", event.target.value.trim());
      history.replaceState(null, "", location.pathname + (asked.size ? `?${asked}` : ""));
      live.dataset.stream = `/page/events?${new URLSearchParams({path: location.pathname, query: asked})}`;
      live.dispatchEvent(new Event("page:move"));
    }, WAIT_MS);
  });
  live?.addEventListener("htmx:sse:after:message", number);

  const button = document.createElement("button");
  button.textContent = "Keys";
  button.addEventListener("click", () => show(help));
  find("footer")?.append(button);
  number();
})();
