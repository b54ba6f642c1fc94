-- Return the first entries of a range, up to items_max and bytes_max; the entries after them are not read.
--
-- STABLE: all statements in the function see one snapshot, that of the calling statement. A row of nulls means that the
-- range is not complete: an entry is missing or was trimmed, or the ledger was deleted. The caller finds out which.
CREATE FUNCTION schema_of_store.{name}(
    of_managed_id bigint, after_ledger_id bigint, after_entry_id bigint, upto_ledger_id bigint, upto_entry_id bigint,
    items_max bigint, bytes_max bigint
) RETURNS TABLE (place bigint, data bytea) LANGUAGE plpgsql STABLE
AS $function$
#variable_conflict use_column
DECLARE
    segment record;
    entry record;
    expected bigint;
    last_place bigint;
    items bigint := items_max;
    room bigint := bytes_max;
    is_first boolean := true;
BEGIN
    PERFORM FROM schema_of_store.managed_ledgers m
        WHERE m.id = of_managed_id AND m.name IS NOT NULL AND (
            m.trimmed_ledger_id IS NULL
            OR (after_ledger_id, after_entry_id) >= (m.trimmed_ledger_id, m.trimmed_entry_id)
            OR (upto_ledger_id, upto_entry_id) < (m.first_ledger_id, 0)
        );
    IF NOT FOUND THEN
        RETURN NEXT;
        RETURN;
    END IF;
    FOR segment IN
        SELECT s.ledger_id,
            CASE WHEN s.ledger_id = after_ledger_id THEN after_entry_id + 1 ELSE 0 END AS first,
            CASE WHEN s.ledger_id = upto_ledger_id THEN least(upto_entry_id, s.entries - 1) ELSE s.entries - 1 END AS last
        FROM schema_of_store.ledger_segments s
        WHERE s.managed_id = of_managed_id AND s.ledger_id BETWEEN after_ledger_id AND upto_ledger_id
            AND s.trimming = 0 AND s.entries > 0
        ORDER BY s.ledger_id
    LOOP
        expected := (segment.ledger_id << 32) + segment.first;
        last_place := (segment.ledger_id << 32) + segment.last;
        FOR entry IN
            SELECT e.place, e.data FROM schema_of_store.entries e WHERE e.place BETWEEN expected AND last_place
            ORDER BY e.place LIMIT items
        LOOP
            EXIT WHEN entry.place <> expected;
            room := room - length(entry.data);
            IF room < 0 AND NOT is_first THEN
                RETURN;
            END IF;
            is_first := false;
            place := entry.place;
            data := entry.data;
            RETURN NEXT;
            items := items - 1;
            IF items <= 0 THEN
                RETURN;
            END IF;
            expected := expected + 1;
        END LOOP;
        IF expected <= last_place THEN
            place := NULL;
            data := NULL;
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
END
$function$
