import * as assert from "node:assert";
import { test } from "node:test";
import { firstValueFrom } from "rxjs";
import { daysLeft, later, Task } from "./model";

const now = new Date(2026, 0, 1);
const task: Task = { name: "write", due: new Date(2026, 0, 3), done: false };

test("days are summed over open tasks", async () => {
  const tasks = [task, later(task, 5), { ...task, done: true }];
  assert.strictEqual(await firstValueFrom(daysLeft(tasks, now)), 9);
});
