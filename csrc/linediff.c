/* Line diff: hunks between two texts, the ones git's default diff finds.
 *
 * The algorithm is Myers', "An O(ND) Difference Algorithm and Its Variations" (Algorithmica, 1986), in its linear-space
 * form, with the limits on cost and the placing of groups that git has; layerfs/kernels/linediff_reference.py explains the
 * steps one by one in the same order, under the same names. Both are written from the paper and from what git does.
 *
 * Positions are 32 bits: a text of more than 2^30 lines is refused (EFBIG).
 */
#include "kernels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    FREQUENT_LIMIT = 1024,
    NEIGHBOURHOOD = 100,
    SNAKE = 20,
    TRUST_COST = 256,
    TRUST_FACTOR = 4,
    LEAST_MAX_COST = 256,
    MAX_SLIDE = 100,
    MAX_INDENT = 200,
    MAX_BLANKS = 20,
    MAX_LINES = 1 << 30,
};

typedef struct {
    const char *text;
    size_t length;
    size_t *starts;    /* where each line starts, and where the last ends */
    int32_t *numbers;  /* equal lines, equal numbers */
    uint8_t *changed;  /* one flag a line, and an unset one after the last */
    int32_t *kept;     /* positions of the lines that are compared */
    int32_t *compared; /* their numbers */
    int32_t count;
    int32_t kept_count;
} side;

/* Step 1: lines become numbers. */

static size_t count_lines(const char *text, size_t length)
{
    size_t count = 0;
    const char *at = text, *end = text + length;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        count++;
        at = newline ? newline + 1 : end;
    }
    return count;
}

static int side_open(side *s, const char *text, size_t length)
{
    memset(s, 0, sizeof *s);
    s->text = text;
    s->length = length;
    size_t count = count_lines(text, length);
    if (count > MAX_LINES)
        return EFBIG;
    s->count = (int32_t)count;
    s->starts = malloc((count + 1) * sizeof *s->starts);
    s->numbers = malloc((count + 1) * sizeof *s->numbers);
    s->kept = malloc((count + 1) * sizeof *s->kept);
    s->compared = malloc((count + 1) * sizeof *s->compared);
    s->changed = calloc(count + 1, 1);
    if (!s->starts || !s->numbers || !s->kept || !s->compared || !s->changed)
        return ENOMEM;
    const char *at = text, *end = text + length;
    for (size_t i = 0; i < count; i++) {
        s->starts[i] = (size_t)(at - text);
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at = newline ? newline + 1 : end;
    }
    s->starts[count] = length;
    return 0;
}

static void side_close(side *s)
{
    free(s->starts);
    free(s->numbers);
    free(s->kept);
    free(s->compared);
    free(s->changed);
}

typedef struct {
    uint64_t hash;
    const char *line;
    size_t length;
    int32_t count_a;
    int32_t count_b;
} line_class;

typedef struct {
    line_class *classes;
    int32_t *slots; /* class + 1, 0 for free */
    size_t mask;
    int32_t count;
} class_table;

static uint64_t hash_line(const char *line, size_t length)
{
    uint64_t hash = length * 0x9e3779b97f4a7c15u;
    while (length >= 8) {
        uint64_t word;
        memcpy(&word, line, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
        line += 8;
        length -= 8;
    }
    uint64_t word = 0;
    memcpy(&word, line, length);
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53u;
    return hash ^ hash >> 29;
}

static int32_t class_of(class_table *table, const char *line, size_t length)
{
    uint64_t hash = hash_line(line, length);
    for (size_t slot = hash & table->mask;; slot = (slot + 1) & table->mask) {
        int32_t found = table->slots[slot] - 1;
        if (found < 0) {
            table->slots[slot] = table->count + 1;
            table->classes[table->count] = (line_class){.hash = hash, .line = line, .length = length};
            return table->count++;
        }
        const line_class *known = &table->classes[found];
        if (known->hash == hash && known->length == length && !memcmp(known->line, line, length))
            return found;
    }
}

static int number_lines(side *a, side *b, class_table *table)
{
    size_t total = (size_t)a->count + (size_t)b->count;
    size_t slots = 64;
    while (slots < total * 2)
        slots *= 2;
    table->count = 0;
    table->mask = slots - 1;
    table->slots = calloc(slots, sizeof *table->slots);
    table->classes = malloc((total + 1) * sizeof *table->classes);
    if (!table->slots || !table->classes)
        return ENOMEM;
    for (int32_t i = 0; i < a->count; i++) {
        a->numbers[i] = class_of(table, a->text + a->starts[i], a->starts[i + 1] - a->starts[i]);
        table->classes[a->numbers[i]].count_a++;
    }
    for (int32_t i = 0; i < b->count; i++) {
        b->numbers[i] = class_of(table, b->text + b->starts[i], b->starts[i + 1] - b->starts[i]);
        table->classes[b->numbers[i]].count_b++;
    }
    return 0;
}

/* Step 2: lines that cannot match, or match too often to mean anything, are set aside. */

/* A power of two near the square root, never below it. */
static int32_t rough_root(int64_t value)
{
    int32_t root = 1;
    for (; value > 0; value >>= 2)
        root <<= 1;
    return root;
}

enum { UNMATCHED, USUAL, FREQUENT };

/* Whether a frequent line stands, on both sides, in a run with enough lines that match nothing. */
static int is_noise(const uint8_t *rank, int32_t at, int32_t count)
{
    int unmatched = 0, frequent = 0;
    for (int step = -1; step <= 1; step += 2) {
        int here = 0;
        frequent++;
        int32_t where = at + step;
        for (int i = 0; i < NEIGHBOURHOOD && where >= 0 && where < count && rank[where] != USUAL; i++) {
            if (rank[where] == UNMATCHED)
                here++;
            else
                frequent++;
            where += step;
        }
        if (!here)
            return 0;
        unmatched += here;
    }
    return frequent * 4 < frequent + unmatched;
}

static int set_aside(side *s, int32_t start, int32_t end, const class_table *table, int other_is_b)
{
    int32_t often = rough_root(s->count), count = end - start;
    if (often > FREQUENT_LIMIT)
        often = FREQUENT_LIMIT;
    uint8_t *rank = malloc((size_t)count + 1);
    if (!rank)
        return ENOMEM;
    for (int32_t i = 0; i < count; i++) {
        const line_class *class = &table->classes[s->numbers[start + i]];
        int32_t matches = other_is_b ? class->count_b : class->count_a;
        rank[i] = !matches ? UNMATCHED : matches >= often ? FREQUENT : USUAL;
    }
    for (int32_t i = 0; i < count; i++) {
        if (rank[i] == USUAL || (rank[i] == FREQUENT && !is_noise(rank, i, count))) {
            s->kept[s->kept_count] = start + i;
            s->compared[s->kept_count++] = s->numbers[start + i];
        } else {
            s->changed[start + i] = 1;
        }
    }
    free(rank);
    return 0;
}

/* Step 3: divide and conquer over what is left. */

typedef struct {
    int32_t left, right, top, bottom;
    int exact; /* without short cuts */
} box;

typedef struct {
    int32_t x, y;
    int exact_before, exact_after;
} split;

typedef struct {
    const int32_t *a, *b;
    int32_t *forward, *backward; /* the furthest x reached on diagonal k = x - y */
    int32_t max_cost;
} search;

/* Diagonals in use in one direction: every other one from first to last. */
typedef struct {
    int32_t first, last;
} range;

static void widen(int32_t *reach, range *r, int32_t low, int32_t high, int32_t outside)
{
    if (r->first > low) {
        r->first--;
        reach[r->first - 1] = outside;
    } else {
        r->first++;
    }
    if (r->last < high) {
        r->last++;
        reach[r->last + 1] = outside;
    } else {
        r->last--;
    }
}

static int same_run(const search *s, int32_t x, int32_t y)
{
    return !memcmp(s->a + x, s->b + y, SNAKE * sizeof *s->a);
}

/* A diagonal far ahead of the cost that has just come through a long run of equal lines is taken on trust. */
static int trust(const search *s, const box *in, range forward, range backward, int32_t cost, split *found)
{
    int64_t best = 0;
    int32_t middle = in->left - in->top;
    for (int32_t k = forward.last; k >= forward.first; k -= 2) {
        int32_t x = s->forward[k], y = x - k;
        int64_t gain = (int64_t)(x - in->left) + (y - in->top) - abs(k - middle);
        if (gain > (int64_t)TRUST_FACTOR * cost && gain > best && in->left + SNAKE <= x && x < in->right &&
            in->top + SNAKE <= y && y < in->bottom && same_run(s, x - SNAKE, y - SNAKE)) {
            best = gain;
            *found = (split){x, y, 1, 0};
        }
    }
    if (best)
        return 1;
    middle = in->right - in->bottom;
    for (int32_t k = backward.last; k >= backward.first; k -= 2) {
        int32_t x = s->backward[k], y = x - k;
        int64_t gain = (int64_t)(in->right - x) + (in->bottom - y) - abs(k - middle);
        if (gain > (int64_t)TRUST_FACTOR * cost && gain > best && in->left < x && x <= in->right - SNAKE &&
            in->top < y && y <= in->bottom - SNAKE && same_run(s, x, y)) {
            best = gain;
            *found = (split){x, y, 0, 1};
        }
    }
    return best > 0;
}

/* Gives the search up and splits where one of the two directions got furthest. */
static split furthest(const search *s, const box *in, range forward, range backward)
{
    int64_t best_forward = -1, best_backward = INT64_MAX;
    int32_t forward_x = -1, backward_x = -1;
    for (int32_t k = forward.last; k >= forward.first; k -= 2) {
        int32_t x = s->forward[k] < in->right ? s->forward[k] : in->right, y = x - k;
        if (y > in->bottom) {
            x = in->bottom + k;
            y = in->bottom;
        }
        if ((int64_t)x + y > best_forward) {
            best_forward = (int64_t)x + y;
            forward_x = x;
        }
    }
    for (int32_t k = backward.last; k >= backward.first; k -= 2) {
        int32_t x = s->backward[k] > in->left ? s->backward[k] : in->left, y = x - k;
        if (y < in->top) {
            x = in->top + k;
            y = in->top;
        }
        if ((int64_t)x + y < best_backward) {
            best_backward = (int64_t)x + y;
            backward_x = x;
        }
    }
    int64_t start = (int64_t)in->left + in->top, end = (int64_t)in->right + in->bottom;
    if (end - best_backward < best_forward - start)
        return (split){forward_x, (int32_t)(best_forward - forward_x), 1, 0};
    return (split){backward_x, (int32_t)(best_backward - backward_x), 0, 1};
}

/* Finds where the shortest path through the box meets itself, searching from both corners at once. */
static split middle_of(const search *s, const box *in)
{
    const int32_t *a = s->a, *b = s->b;
    int32_t *ahead = s->forward, *back = s->backward;
    const int32_t left = in->left, right = in->right, top = in->top, bottom = in->bottom;
    const int32_t low = left - bottom, high = right - top;
    range forward = {left - top, left - top}, backward = {right - bottom, right - bottom};
    const int odd = (forward.first - backward.first) & 1;
    ahead[forward.first] = left;
    back[backward.first] = right;
    for (int32_t cost = 1;; cost++) {
        int long_snake = 0;
        widen(ahead, &forward, low, high, -1);
        for (int32_t k = forward.last; k >= forward.first; k -= 2) {
            int32_t x = ahead[k - 1] >= ahead[k + 1] ? ahead[k - 1] + 1 : ahead[k + 1];
            int32_t start = x;
            while (x < right && x - k < bottom && a[x] == b[x - k])
                x++;
            long_snake |= x - start > SNAKE;
            ahead[k] = x;
            if (odd && backward.first <= k && k <= backward.last && back[k] <= x)
                return (split){x, x - k, 1, 1};
        }
        widen(back, &backward, low, high, INT32_MAX);
        for (int32_t k = backward.last; k >= backward.first; k -= 2) {
            int32_t x = back[k - 1] < back[k + 1] ? back[k - 1] : back[k + 1] - 1;
            int32_t start = x;
            while (x > left && x - k > top && a[x - 1] == b[x - k - 1])
                x--;
            long_snake |= start - x > SNAKE;
            back[k] = x;
            if (!odd && forward.first <= k && k <= forward.last && x <= ahead[k])
                return (split){x, x - k, 1, 1};
        }
        if (in->exact)
            continue;
        split found;
        if (long_snake && cost > TRUST_COST && trust(s, in, forward, backward, cost, &found))
            return found;
        if (cost >= s->max_cost)
            return furthest(s, in, forward, backward);
    }
}

typedef struct {
    box *items;
    size_t count, capacity;
} box_stack;

static int push_box(box_stack *stack, box item)
{
    if (stack->count == stack->capacity) {
        size_t capacity = stack->capacity ? stack->capacity * 2 : 64;
        box *items = realloc(stack->items, capacity * sizeof *items);
        if (!items)
            return ENOMEM;
        stack->items = items;
        stack->capacity = capacity;
    }
    stack->items[stack->count++] = item;
    return 0;
}

/* A stack of our own: a box can be nested deeper than a thread's stack is long. */
static int divide(side *old, side *new, const search *s)
{
    box_stack stack = {0};
    int error = push_box(&stack, (box){0, old->kept_count, 0, new->kept_count, 0});
    while (!error && stack.count) {
        box in = stack.items[--stack.count];
        while (in.left < in.right && in.top < in.bottom && s->a[in.left] == s->b[in.top]) {
            in.left++;
            in.top++;
        }
        while (in.left < in.right && in.top < in.bottom && s->a[in.right - 1] == s->b[in.bottom - 1]) {
            in.right--;
            in.bottom--;
        }
        if (in.left == in.right) {
            for (int32_t y = in.top; y < in.bottom; y++)
                new->changed[new->kept[y]] = 1;
        } else if (in.top == in.bottom) {
            for (int32_t x = in.left; x < in.right; x++)
                old->changed[old->kept[x]] = 1;
        } else {
            split at = middle_of(s, &in);
            error = push_box(&stack, (box){at.x, in.right, at.y, in.bottom, at.exact_after});
            if (!error)
                error = push_box(&stack, (box){in.left, at.x, in.top, at.y, at.exact_before});
        }
    }
    free(stack.items);
    return error;
}

static int compare(side *old, side *new, const class_table *table)
{
    int32_t shorter = old->count < new->count ? old->count : new->count, head = 0, tail = 0;
    while (head < shorter && old->numbers[head] == new->numbers[head])
        head++;
    while (tail < shorter - head && old->numbers[old->count - 1 - tail] == new->numbers[new->count - 1 - tail])
        tail++;
    int error = set_aside(old, head, old->count - tail, table, 1);
    if (!error)
        error = set_aside(new, head, new->count - tail, table, 0);
    if (error)
        return error;
    size_t diagonals = (size_t)old->kept_count + (size_t)new->kept_count + 3;
    int32_t *reach = malloc(2 * diagonals * sizeof *reach);
    if (!reach)
        return ENOMEM;
    search s = {old->compared, new->compared, reach + new->kept_count + 1, reach + diagonals + new->kept_count + 1,
                rough_root((int64_t)diagonals)};
    if (s.max_cost < LEAST_MAX_COST)
        s.max_cost = LEAST_MAX_COST;
    error = divide(old, new, &s);
    free(reach);
    return error;
}

/* Step 4: groups of changed lines are slid to their place. */

/* A run of changed lines [start, end) – possibly empty, between two unchanged lines. */
typedef struct {
    const side *side;
    int32_t start, end;
} group;

static void stretch(group *g)
{
    while (g->side->changed[g->end])
        g->end++;
}

static group first_group(const side *s)
{
    group g = {s, 0, 0};
    stretch(&g);
    return g;
}

static int next_group(group *g)
{
    if (g->end == g->side->count)
        return 0;
    g->start = ++g->end;
    stretch(g);
    return 1;
}

static void stretch_back(group *g)
{
    while (g->start > 0 && g->side->changed[g->start - 1])
        g->start--;
}

static void previous_group(group *g)
{
    g->end = --g->start;
    stretch_back(g);
}

static int slide_up(group *g)
{
    const int32_t *numbers = g->side->numbers;
    if (g->start == 0 || numbers[g->start - 1] != numbers[g->end - 1])
        return 0;
    g->side->changed[--g->start] = 1;
    g->side->changed[--g->end] = 0;
    stretch_back(g);
    return 1;
}

static int slide_down(group *g)
{
    const int32_t *numbers = g->side->numbers;
    if (g->end == g->side->count || numbers[g->start] != numbers[g->end])
        return 0;
    g->side->changed[g->start++] = 0;
    g->side->changed[g->end++] = 1;
    stretch(g);
    return 1;
}

/* The column of the first thing on a line (tabs of 8), -1 if there is none. */
static int indent_of(const side *s, int32_t line)
{
    int column = 0;
    for (size_t at = s->starts[line]; at < s->starts[line + 1]; at++) {
        char byte = s->text[at];
        if (byte == ' ')
            column++;
        else if (byte == '\t')
            column += 8 - column % 8;
        else if (byte != '\n' && byte != '\r' && byte != '\v' && byte != '\f')
            return column;
        if (column >= MAX_INDENT)
            return MAX_INDENT;
    }
    return -1;
}

typedef struct {
    int indent, penalty;
} border;

/* Weighs a border before a line: the indentation there, and a penalty for looking unlike a block border. */
static border weigh(const side *s, int32_t at)
{
    border result = {0, 0};
    int here = -1;
    if (at >= s->count)
        result.penalty += 21;
    else
        here = indent_of(s, at);
    int before = -1, blanks_before = 0;
    for (int32_t line = at - 1; line >= 0; line--) {
        before = indent_of(s, line);
        if (before != -1)
            break;
        if (++blanks_before == MAX_BLANKS) {
            before = 0;
            break;
        }
    }
    int after = -1, blanks_after = 0;
    for (int32_t line = at + 1; line < s->count; line++) {
        after = indent_of(s, line);
        if (after != -1)
            break;
        if (++blanks_after == MAX_BLANKS) {
            after = 0;
            break;
        }
    }
    if (before == -1 && blanks_before == 0)
        result.penalty += 1;
    int blanks_from_here = here == -1 ? 1 + blanks_after : 0;
    int blanks = blanks_before + blanks_from_here;
    result.penalty += -30 * blanks + 6 * blanks_from_here;
    result.indent = here != -1 ? here : after;
    if (result.indent == -1 || before == -1 || result.indent == before)
        return result;
    if (result.indent > before)
        result.penalty += blanks ? 10 : -4;
    else if (after != -1 && after > result.indent)
        result.penalty += blanks ? 17 : 24;
    else
        result.penalty += blanks ? 17 : 23;
    return result;
}

/* The end whose two borders look most like block borders; the later one where two look alike. */
static int32_t best_end_of(const group *g, int32_t size, int32_t earliest)
{
    int32_t end = earliest, best_end = -1;
    border best = {0, 0};
    if (end < g->end - size - 1)
        end = g->end - size - 1;
    if (end < g->end - MAX_SLIDE)
        end = g->end - MAX_SLIDE;
    for (; end <= g->end; end++) {
        border first = weigh(g->side, end), second = weigh(g->side, end - size);
        border both = {first.indent + second.indent, first.penalty + second.penalty};
        int order = 60 * ((both.indent > best.indent) - (both.indent < best.indent)) + both.penalty - best.penalty;
        if (best_end < 0 || order <= 0) {
            best_end = end;
            best = both;
        }
    }
    return best_end;
}

static void settle(group *g, group *opposite, int indent_heuristic)
{
    int32_t size, earliest;
    int aligned;
    do {
        size = g->end - g->start;
        while (slide_up(g))
            previous_group(opposite);
        earliest = g->end;
        aligned = opposite->end > opposite->start;
        while (slide_down(g)) {
            next_group(opposite);
            aligned |= opposite->end > opposite->start;
        }
    } while (size != g->end - g->start);
    if (g->end == earliest)
        return;
    if (aligned) {
        while (opposite->end == opposite->start) {
            slide_up(g);
            previous_group(opposite);
        }
    } else if (indent_heuristic) {
        int32_t end = best_end_of(g, size, earliest);
        while (g->end > end) {
            slide_up(g);
            previous_group(opposite);
        }
    }
}

/* The two sides are walked in step, one unchanged line at a time. */
static void compact(const side *s, const side *other, int indent_heuristic)
{
    group g = first_group(s), opposite = first_group(other);
    do {
        if (g.end > g.start)
            settle(&g, &opposite, indent_heuristic);
    } while (next_group(&g) && next_group(&opposite));
}

static int collect(const side *old, const side *new, offset_list *hunks)
{
    int32_t x = 0, y = 0;
    while (x < old->count || y < new->count) {
        int32_t start_x = x, start_y = y;
        while (x < old->count && old->changed[x])
            x++;
        while (y < new->count && new->changed[y])
            y++;
        if ((x > start_x || y > start_y) &&
            (offset_list_add(hunks, (size_t)start_x) || offset_list_add(hunks, (size_t)x) ||
             offset_list_add(hunks, (size_t)start_y) || offset_list_add(hunks, (size_t)y)))
            return ENOMEM;
        x++;
        y++;
    }
    return 0;
}

int diff_lines(const char *a, size_t a_length, const char *b, size_t b_length, int indent_heuristic,
               offset_list *hunks)
{
    if (a_length == b_length && !memcmp(a, b, a_length))
        return 0;
    side old = {0}, new = {0};
    class_table table = {0};
    int error = side_open(&old, a, a_length);
    if (!error)
        error = side_open(&new, b, b_length);
    if (!error)
        error = number_lines(&old, &new, &table);
    if (!error)
        error = compare(&old, &new, &table);
    free(table.slots);
    free(table.classes);
    if (!error) {
        compact(&old, &new, indent_heuristic);
        compact(&new, &old, indent_heuristic);
        error = collect(&old, &new, hunks);
    }
    side_close(&old);
    side_close(&new);
    return error;
}
