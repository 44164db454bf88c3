// What the code of a run finds: `servers`, `call`, `console`, `setTimeout` and `clearTimeout`. Returns the functions with
// which the process drives the run. The code may replace any built-in function, so this file keeps the ones that it uses.
// It is no boundary: whatever the code breaks here is broken for itself.
(function (send, print, toolsText, limits) {
  "use strict";
  const { parse, stringify } = JSON;
  const { now } = Date;
  const tools = parse(toolsText);
  // A lone surrogate has no form in UTF-8.
  const wellFormed = Function.prototype.call.bind(String.prototype.toWellFormed);

  // The text of a value for people. Never throws, except when the run is interrupted.
  function show(value) {
    try {
      if (typeof value === "string") return wellFormed(value);
      if (typeof value === "bigint") return `${value}n`;
      if (typeof value === "function") return wellFormed(`[function ${String(value.name)}]`);
      if (typeof value === "object" && value !== null) {
        if (value instanceof Error) return wellFormed(`${value.name}: ${value.message}`);
        return encode(value) ?? "undefined";
      }
      return wellFormed(String(value));
    } catch (error) {
      return "[a value that cannot be shown]";
    }
  }

  // JSON text of a value, or undefined. Unlike JSON.stringify, it accepts cycles and values without a JSON form.
  function encode(value) {
    const path = [];
    const open = new Set();
    return stringify(value, function (key, item) {
      if (typeof item === "bigint") return `${item}`;
      if (typeof item === "symbol") return String(item);
      if (typeof item === "function") return `[function ${String(item.name)}]`;
      if (typeof item !== "object" || item === null) return item;
      while (path.length > 0 && path[path.length - 1].shown !== this) {
        open.delete(path[path.length - 1].item);
        path.length -= 1;
      }
      if (open.has(item)) return "[circular]";
      let shown = item;
      if (item instanceof Map || item instanceof Set) shown = [...item];
      else if (item instanceof Error) shown = { name: item.name, message: item.message, ...item };
      else if (ArrayBuffer.isView(item) && !(item instanceof DataView)) shown = [...item];
      path[path.length] = { item, shown };
      open.add(item);
      return shown;
    });
  }

  // Message and stack of a thrown value.
  function describe(thrown) {
    let stack = "";
    try {
      if (thrown instanceof Error) {
        stack = wellFormed(`${thrown.stack}`);
        return [wellFormed(`${thrown.name}: ${thrown.message}`), stack];
      }
    } catch (error) {
      // For instance a Proxy.
    }
    return [`the code threw a value that is not an Error: ${show(thrown)}`, stack];
  }

  let made = 0;
  let inFlight = 0;
  const running = new Map();
  let waiting = [];
  let next = 0;

  function pump() {
    while (inFlight < limits.calls_in_flight && next < waiting.length) {
      const call = waiting[next];
      waiting[next] = undefined;
      next += 1;
      made += 1;
      if (send(made, wellFormed(call.name), call.text)) {
        running.set(made, call);
        inFlight += 1;
      } else {
        made -= 1;
        call.fail(`the name or the arguments are too long (at most ${limits.argument_bytes} bytes)`);
      }
    }
    if (next === waiting.length) {
      waiting = [];
      next = 0;
    }
  }

  // Calls a tool by its exposed name.
  function invoke(name, args) {
    // Made here, so that its stack has the line of the call.
    const failure = new Error();
    return new Promise((resolve, reject) => {
      const fail = (message, details) => {
        const hidden = { writable: true, configurable: true };
        Object.defineProperty(failure, "message", { value: message, ...hidden });
        Object.defineProperty(failure, "tool", { value: name, ...hidden });
        if (details !== undefined) Object.defineProperty(failure, "result", { value: details, ...hidden });
        reject(failure);
      };
      if (typeof name !== "string") return fail("the name of a tool must be a string");
      if (args === undefined) args = {};
      if (typeof args !== "object" || args === null || Array.isArray(args)) {
        return fail(`${name}: pass the arguments as one object`);
      }
      let text;
      try {
        text = stringify(args);
      } catch (error) {
        return fail(`${name}: the arguments cannot be written as JSON: ${show(error)}`);
      }
      if (typeof text !== "string" || text[0] !== "{") {
        return fail(`${name}: pass the arguments as one object`);
      }
      if (text.length > limits.argument_bytes) {
        return fail(`${name}: the arguments are longer than ${limits.argument_bytes} bytes`);
      }
      if (made + waiting.length - next >= limits.calls) {
        return fail(`a run can make at most ${limits.calls} calls`);
      }
      waiting[waiting.length] = { name, text, resolve, fail };
      pump();
    });
  }

  function texts(result) {
    const { content } = result;
    if (!Array.isArray(content)) return undefined;
    let text = "";
    for (let index = 0; index < content.length; index += 1) {
      const block = content[index];
      if (block?.type !== "text" || typeof block.text !== "string") return undefined;
      text += (index > 0 ? "\n" : "") + block.text;
    }
    return text;
  }

  function settle(id, isError, text) {
    const call = running.get(id);
    if (call === undefined) return;
    running.delete(id);
    inFlight -= 1;
    if (isError) {
      call.fail(text);
    } else {
      try {
        const result = parse(text);
        if (typeof result !== "object" || result === null) call.resolve(result);
        else if (result.isError === true) call.fail(texts(result) ?? `${call.name} failed`, result);
        else call.resolve(result.structuredContent ?? texts(result) ?? result);
      } catch (error) {
        call.fail(`${call.name}: the result cannot be read: ${show(error)}`);
      }
    }
    pump();
  }

  // An object whose properties are functions that call tools. It has the names of the tools as its keys.
  function callable(path, names, make) {
    return new Proxy(names, {
      get(target, key) {
        if (typeof key !== "string" || key === "then" || key === "toJSON") return undefined;
        if (Object.hasOwn(target, key)) return make(key, target[key]);
        const known = Object.keys(target);
        const some = known.slice(0, 20).join(", ");
        const more = known.length > 20 ? ` and ${known.length - 20} more` : "";
        throw new TypeError(`${path}.${key} does not exist; ${path} has: ${some}${more}`);
      },
      set: () => false,
      defineProperty: () => false,
      deleteProperty: () => false,
      setPrototypeOf: () => false,
      preventExtensions: () => false,
    });
  }

  const servers = callable("servers", tools, (server, names) =>
    callable(`servers.${server}`, names, (name, exposed) =>
      Object.defineProperty((args) => invoke(exposed, args), "name", { value: name })));

  const timers = new Map();
  let timersMade = 0;

  function setTimeout(action, delay, ...args) {
    if (typeof action !== "function") throw new TypeError("setTimeout needs a function");
    timersMade += 1;
    timers.set(timersMade, { at: now() + Math.max(0, Number(delay) || 0), action, args });
    return timersMade;
  }

  function clearTimeout(id) {
    timers.delete(id);
  }

  // Milliseconds until the next timer, or undefined.
  function pause() {
    let at;
    for (const timer of timers.values()) if (at === undefined || timer.at < at) at = timer.at;
    return at === undefined ? undefined : Math.max(0, at - now());
  }

  // Runs the action of the first timer that is due.
  function fire() {
    let first;
    for (const [id, timer] of timers) {
      if (timer.at <= now() && (first === undefined || timer.at < first.timer.at)) first = { id, timer };
    }
    if (first === undefined) return;
    timers.delete(first.id);
    try {
      (0, first.timer.action)(...first.timer.args);
    } catch (error) {
      print(`uncaught in a timer: ${describe(error)[0]}`);
    }
  }

  function log(...values) {
    let text = "";
    for (let index = 0; index < values.length; index += 1) text += (index > 0 ? " " : "") + show(values[index]);
    print(text);
  }

  const visible = { servers, call: invoke, setTimeout, clearTimeout };
  visible.console = { log, info: log, warn: log, error: log, debug: log };
  for (const name of Object.keys(visible)) {
    Object.defineProperty(globalThis, name, { value: visible[name], writable: true, configurable: true });
  }
  return {
    settle,
    pause,
    fire,
    encode,
    describe,
    print,
    outstanding: () => inFlight,
  };
})
