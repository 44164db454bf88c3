// The content of the server: the lists of `testkit-conformance`, and what its prompts and resources contain.

import { readFileSync } from 'node:fs';

// A red PNG of one pixel.
const IMAGE =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM4oKAAAAKkAQHjTKctAAAAAElFTkSuQmCC';

const lists = readFileSync(new URL('../src/bin/testkit-conformance/lists.json', import.meta.url), 'utf8');
export const { tools, prompts, resources, resourceTemplates, results, questions } =
  JSON.parse(lists.replaceAll('@IMAGE@', IMAGE));

export const completions = ['paris', 'park', 'party', 'test', 'testing', '42'];

const text = (text) => ({ type: 'text', text });

// The contents of the messages of a prompt.
export function prompt(name, given) {
  switch (name) {
    case 'test_prompt_with_arguments':
      return [text(`Prompt with arguments: arg1='${given.arg1}', arg2='${given.arg2}'`)];
    case 'test_prompt_with_embedded_resource':
      return [
        {
          type: 'resource',
          resource: { uri: given.resourceUri, mimeType: 'text/plain', text: 'Embedded resource content for testing.' },
        },
        text('Please process the embedded resource above.'),
      ];
    case 'test_prompt_with_image':
      return [{ type: 'image', data: IMAGE, mimeType: 'image/png' }, text('Please analyze the image above.')];
    default:
      return [text('This is a simple prompt for testing.')];
  }
}

// The contents of a listed resource.
export function resource(uri) {
  return uri === 'test://static-binary'
    ? { uri, mimeType: 'image/png', blob: IMAGE }
    : { uri, mimeType: 'text/plain', text: 'This is the content of the static text resource.' };
}

// The contents of a resource of the template.
export function templated(uri, id) {
  const data = { id, templateTest: true, data: `Data for ID: ${id}` };
  return { uri, mimeType: 'application/json', text: JSON.stringify(data) };
}
