"use strict";
// Shows the text of a task's square, and opens the task after a click. The squares are text: ten thousand links are slow.
(() => {
  const room = document.getElementById("squares"), COLUMNS = 25;
  const pointed = (event) => {
    const block = event.target.closest("#squares > span");
    if (!block) return null;
    const box = block.getBoundingClientRect(), side = box.width / COLUMNS;
    const place = Math.floor((event.clientY - box.top) / side) * COLUMNS + Math.floor((event.clientX - box.left) / side);
    const line = (block.dataset.tasks ?? "").split("\n")[place];
    return line ? {block, id: line.slice(0, line.indexOf(" ")), text: line.slice(line.indexOf(" ") + 1)} : null;
  };
  room.addEventListener("pointermove", (event) => {
    const found = pointed(event);
    room.title = found ? found.text : "";
  });
  room.addEventListener("click", (event) => {
    const found = pointed(event);
    if (found) location.assign(`${room.dataset.tasks}?task=${found.id}`);
  });
})();
