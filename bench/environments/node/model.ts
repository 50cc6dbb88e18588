import { Observable, from } from "rxjs";
import { filter, map, reduce } from "rxjs/operators";
import { addDays, differenceInDays } from "date-fns";

export interface Task {
  name: string;
  due: Date;
  done: boolean;
}

export function open(tasks: Task[]): Observable<Task> {
  return from(tasks).pipe(filter((task) => !task.done));
}

export function daysLeft(tasks: Task[], now: Date): Observable<number> {
  return open(tasks).pipe(
    map((task) => differenceInDays(task.due, now)),
    reduce((sum, days) => sum + days, 0),
  );
}

export function later(task: Task, days: number): Task {
  return { ...task, due: addDays(task.due, days) };
}
