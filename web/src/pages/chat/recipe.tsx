// The card of the tool `display_recipe`.
import { isLink, Outside } from "@/ui/outside";

type Recipe = Record<string, unknown>;

const words = (value: unknown) => (typeof value === "string" ? value : typeof value === "number" ? String(value) : "");
const lines = (value: unknown): string[] => (Array.isArray(value) ? value.map(words).filter((line) => line.trim()).slice(0, 500) : []);

function minutes(value: unknown): string {
  const all = Number(value);
  if (!Number.isFinite(all) || all <= 0) return "";
  const [hours, rest] = [Math.floor(all / 60), Math.round(all % 60)];
  return [hours ? `${hours} h` : "", rest ? `${rest} min` : ""].filter(Boolean).join(" ");
}

export const isRecipe = (value: unknown): value is Recipe =>
  typeof value === "object" && value !== null && !Array.isArray(value) && words((value as Recipe)["title"]) !== "" && lines((value as Recipe)["ingredients"]).length + lines((value as Recipe)["steps"]).length > 0;

export function RecipeCard({ recipe }: { recipe: Recipe }) {
  const title = words(recipe["title"]);
  const [prep, cook] = [recipe["prep_minutes"], recipe["cook_minutes"]];
  const facts: [string, string][] = [
    ["Preparation", minutes(prep)],
    ["Cooking", minutes(cook)],
    ["In all", prep && cook ? minutes(Number(prep) + Number(cook)) : ""],
    ["Serves", words(recipe["servings"])],
  ];
  const notes = words(recipe["notes"]).trim();
  const source = words(recipe["source_url"]).trim();
  const tags = lines(recipe["tags"]);
  return (
    <article aria-label={`Recipe: ${title}`} className="recipe overflow-hidden rounded-xl border bg-panel">
      <header className="border-b bg-accent-soft px-5 py-4">
        <p className="text-xs font-semibold tracking-wide text-accent uppercase">Recipe</p>
        <h2 className="text-xl font-semibold break-words">{title}</h2>
        <dl className="mt-2 flex flex-wrap gap-x-6 gap-y-1">
          {facts.filter(([, value]) => value).map(([name, value]) => (
            <div key={name}>
              <dt className="text-xs text-muted">{name}</dt>
              <dd className="text-sm font-medium">{value}</dd>
            </div>
          ))}
        </dl>
      </header>
      <div className="grid gap-5 px-5 py-4 sm:grid-cols-[2fr_3fr]">
        <Part title="Ingredients" as="ul" className="ingredients flex flex-col gap-1 text-sm" items={lines(recipe["ingredients"])} />
        <Part title="Steps" as="ol" className="steps flex list-inside list-decimal flex-col gap-2 text-sm" items={lines(recipe["steps"])} />
      </div>
      {notes && <p className="notes px-5 pb-4 text-sm break-words text-muted">{notes}</p>}
      {(source || !!tags.length) && (
        <footer className="flex flex-wrap items-center gap-x-4 gap-y-2 border-t px-5 py-2.5 text-xs text-muted">
          {source && (
            <span className="source break-all">
              From <Source address={source} />
            </span>
          )}
          {!!tags.length && (
            <ul className="tags flex flex-wrap gap-1.5">
              {tags.map((tag, at) => (
                <li key={at} className="rounded bg-raised px-1.5 py-0.5">{tag}</li>
              ))}
            </ul>
          )}
        </footer>
      )}
    </article>
  );
}

const Part = ({ title, as: List, className, items }: { title: string; as: "ul" | "ol"; className: string; items: string[] }) => (
  <section>
    <h3 className="mb-2 text-sm font-semibold">{title}</h3>
    <List role="list" className={className}>
      {items.map((item, at) => (
        <li key={at} className="break-words">{item}</li>
      ))}
    </List>
  </section>
);

function Source({ address }: { address: string }) {
  if (!/^https?:\/\//i.test(address) || !isLink(address)) return <>{address}</>;
  return (
    <Outside href={address} className="text-accent underline">
      {new URL(address).host.replace(/^www\./, "")}
    </Outside>
  );
}
