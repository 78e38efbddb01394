"use strict";
// Follows a log. Its text is not trusted: it is put only into text nodes, without control characters.
(() => {
  const KEPT = 5000, KEPT_CHARS = 4 * 1024 * 1024, BLOCK = 200, BLOCK_CHARS = 32 * 1024, LINE_CHARS = 8 * 1024;
  const FLUSH_MS = 250, SLICE_CHARS = 256 * 1024, PENDING_MAX = 2 * 1024 * 1024, RETRY_MS = 3000;
  const pre = document.getElementById("log"), state = document.getElementById("state");
  const pause = document.getElementById("pause");
  // The words by which loggers, languages and shells name a level. Only the beginning of a line is read.
  const LEVELS = [["error", /(?<![/\w])(?:CRITICAL|ERROR|FATAL)\b|^(?:error|fatal)[: ]|^Traceback |^panic: |^(?:Uncaught )?[\w$.]*(?:Error|Exception)\b/],
    ["warning", /(?<![/\w])WARN(?:ING)?\b/]];
  const levelOf = (line) => LEVELS.find(([, rule]) => rule.test(line.slice(0, 300)))?.[0];
  const CONTROL = new RegExp("\\x1b\\[[0-?]*[ -/]*[@-~]|\\x1b[\\]PX^_][^\\x07\\x1b\\n]*(?:\\x07|\\x1b\\\\)?|\\x1b[ -/]*[0-~]?"
    + "|[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]", "g");
  // The number of the first line of the text that is not shown yet; null if the log is too large to count its lines.
  let number = null;
  // The number of lines that were left out since the last flush.
  let omitted = 0;
  let open = "", pending = "", flushing = false, skipped = false, stop = null, paused = false, told = "";

  const say = (text) => { if (text !== told) state.textContent = told = text; };
  const atEnd = () => pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 40;
  const ends = (text) => { let found = 0; for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) found += 1; return found; };
  const short = (line) => line.length > LINE_CHARS ? `${line.slice(0, LINE_CHARS)} … (${line.length} characters, cut here)` : line;

  const link = (line) => {
    const made = document.createElement("a");
    made.href = `${pre.dataset.line}${line}#found`;
    made.ariaLabel = `Line ${line}`;
    made.textContent = line;
    return made;
  };
  // Lines are in blocks. The browser lays out only visible blocks; to lay out all lines would freeze the page.
  const block = (text) => {
    for (let from = 0; from < text.length;) {
      let part = pre.lastElementChild;
      const joins = part && part.lines < BLOCK && part.chars < BLOCK_CHARS;
      if (!joins) {
        part = document.createElement("div");
        part.lines = part.chars = 0;
      }
      const piece = [joins ? "\n" : ""];
      for (; from < text.length && part.lines < BLOCK && part.chars < BLOCK_CHARS; from += 1) {
        const named = levelOf(text[from]);
        if (named || number !== null) {
          const line = document.createElement("span");
          if (named) line.className = named;
          if (number !== null) {
            line.append(link(number), " ");
            number += 1;
          }
          line.append(text[from]);
          part.append(piece.join(""), line);
          piece.length = 0;
          piece.push("\n");
        } else piece.push(text[from], "\n");
        part.lines += 1;
        part.chars += text[from].length + 1;
      }
      part.append(piece.join("").replace(/\n$/, ""));
      part.style.containIntrinsicBlockSize = `auto ${part.lines * 1.35}em`;
      if (!joins) pre.append(part);
    }
  };
  // Returns the end of a text, with at most KEPT lines. Earlier lines would be removed at once.
  const tail = (text) => {
    let place = text.length;
    for (let n = 0; n <= KEPT && place > 0; n += 1) place = text.lastIndexOf("\n", place - 1);
    return place > 0 ? text.slice(place + 1) : text;
  };
  const shown = (what) => [...pre.children].reduce((total, part) => total + part[what], 0);
  const trim = () => {
    let total = shown("lines"), size = shown("chars");
    while ((total > KEPT || size > KEPT_CHARS) && pre.children.length > 1) {
      const first = pre.firstElementChild;
      total -= first.lines;
      size -= first.chars;
      first.remove();
    }
  };
  const rest = () => new Promise((go) => setTimeout(go));
  // Works in slices of whole lines, so that typing and scrolling wait for one slice at most.
  const flush = async () => {
    if (flushing || !pending) return;
    flushing = true;
    const mine = stop, end = atEnd(), all = open + pending, text = tail(all);
    omitted += ends(all.slice(0, all.length - text.length));
    if (number !== null) number += omitted;
    pending = "";
    omitted = 0;
    for (let from = 0; from < text.length && mine === stop;) {
      const close = text.indexOf("\n", Math.min(from + SLICE_CHARS, text.length) - 1), last = close < 0;
      const to = last ? text.lastIndexOf("\n") + 1 : close + 1;
      if (to > from) {
        const fresh = text.slice(from, to - 1).replaceAll("\r\n", "\n").replace(CONTROL, "").split("\n").map(short);
        block(fresh);
        trim();
        await rest();
      }
      from = to;
      // A line without an end yet becomes the beginning of the next slice. A line that is too long is cut.
      if (last) { open = text.slice(from); from = text.length; }
      else if (from === text.length) open = "";
    }
    if (mine === stop) {
      if (open.length > PENDING_MAX) open = open.slice(0, LINE_CHARS + 1);
      if (end) pre.scrollTop = pre.scrollHeight;
      if (skipped) say("The log grows too fast, so some lines were omitted here. Download the whole log to see them.");
    }
    flushing = false;
  };
  const ended = async () => {
    while (flushing) await rest();
    await flush();
    const last = short(open.replace(CONTROL, ""));
    open = "";
    if (last) block([last]);
  };

  const follow = async () => {
    stop = new AbortController();
    const mine = stop;
    try {
      const answer = await fetch(pre.dataset.source, {signal: mine.signal});
      if (answer.status === 401) return say("Your session has ended.");
      if (!answer.ok) {
        const problem = await answer.json();
        say(problem.detail);
        if (answer.status === 429 || answer.status === 503) setTimeout(restart, RETRY_MS);
        return;
      }
      say("New lines are shown as they arrive.");
      open = ""; pending = ""; omitted = 0; skipped = false;
      const first = answer.headers.get("X-Log-First");
      number = first && Number(first);
      pre.classList.toggle("numbered", number !== null);
      pre.replaceChildren();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        pending += value;
        if (pending.length > PENDING_MAX) {
          omitted += ends(pending.slice(0, -PENDING_MAX / 2));
          pending = pending.slice(-PENDING_MAX / 2);
          skipped = true;
        }
      }
      await ended();
      say("This is the end of the log.");
    } catch (error) {
      if (mine.signal.aborted) return;
      say("The gateway does not answer. The page tries again.");
      setTimeout(restart, RETRY_MS);
    }
  };
  const restart = () => { if (!paused && !document.hidden) { stop?.abort(); follow(); } };

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) { stop?.abort(); flush(); say("Paused. After the pause, the last lines are loaded again."); } else restart();
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop?.abort(); else restart(); });
  // After a silence, the connection of the log may hang forever.
  document.addEventListener("page:news", restart);
  pause.hidden = false;
  setInterval(flush, FLUSH_MS);
  restart();
})();
