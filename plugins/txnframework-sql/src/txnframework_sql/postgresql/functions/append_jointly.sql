-- Apply a batch of steps on records and append the entries of several managed ledgers, all or nothing; see
-- _joint_appends.py.
--
-- The arguments are those of apply_batches, for at most one batch, and of append_to_ledgers, without operations. Records are
-- locked before ledgers, as everywhere, and ledgers in the order of their ids. So two calls never deadlock: no transaction
-- that holds a ledger waits for a record, and no other one waits for a ledger while it holds another.
--
-- Answers: first those of apply_batches, until a refused step. Then, unless a step was refused, the position of each
-- ledger's first entry. If a ledger id there is 0, nothing was written: that ledger is gone, sealed or full, or may hold an
-- earlier copy.
CREATE FUNCTION schema_of_store.{name}(
    ends bigint[],
    kinds bigint[], paths text[], partitions text[], expecteds bigint[], lists text[], contents bytea[],
    lock_paths text[], lock_partitions text[], lock_writes boolean[], lock_makes boolean[],
    managed_ids bigint[], of_ledger_ids bigint[], now_ms bigint,
    entries_max bigint, bytes_max bigint, deduplication_window bigint, forget_every bigint,
    sizes bigint[], sizes_bytes bigint[], sizes_messages bigint[],
    entry_ledgers bigint[], entry_numbers bigint[], datas bytea[], messages_through bigint[],
    copy_ledgers bigint[], copy_numbers bigint[], copy_producers bigint[], names text[], firsts bigint[],
    lasts bigint[], txns text[], branches bigint[], sequences_through bigint[],
    producer_ledgers bigint[], producers text[], lowest bigint[], added bigint[],
    number_ledgers bigint[], coordinators bigint[], numbers text[],
    channel text, payloads text[], payload_bytes_max bigint, payloads_max bigint
) RETURNS TABLE (
    step bigint, is_met boolean, version bigint, list_before text, ledger_ids bigint[], entry_ids bigint[]
) LANGUAGE plpgsql AS $function$
#variable_conflict use_variable
BEGIN
    -- What is written in this block is undone if a ledger refuses. The rows that were returned stay.
    BEGIN
        FOR step, is_met, version, list_before IN
            SELECT a.step, a.is_met, a.version, a.list_before FROM schema_of_store.{apply_batches}(
                ends, kinds, paths, partitions, expecteds, lists, contents,
                lock_paths, lock_partitions, lock_writes, lock_makes, channel, payload_bytes_max, payloads_max, 0
            ) AS a
        LOOP
            RETURN NEXT;
            IF NOT is_met THEN
                RETURN;
            END IF;
        END LOOP;
        ledger_ids := '{}';
        entry_ids := '{}';
        IF cardinality(managed_ids) > 0 THEN
            PERFORM FROM schema_of_store.managed_ledgers m WHERE m.id = ANY (managed_ids) ORDER BY m.id
                FOR NO KEY UPDATE;
            SELECT a.ledger_ids, a.entry_ids INTO ledger_ids, entry_ids FROM schema_of_store.{append_to_ledgers}(
                managed_ids, of_ledger_ids, now_ms, entries_max, bytes_max, deduplication_window, forget_every,
                sizes, sizes_bytes, sizes_messages, entry_ledgers, entry_numbers, datas, messages_through,
                copy_ledgers, copy_numbers, copy_producers, names, firsts, lasts, txns, branches, sequences_through,
                producer_ledgers, producers, lowest, added, number_ledgers, coordinators, numbers,
                '{}', false, channel, payloads, payload_bytes_max, payloads_max
            ) AS a;
        END IF;
        IF 0 = ANY (ledger_ids) THEN
            RAISE EXCEPTION 'a ledger refuses its entries' USING ERRCODE = 'TXN01';
        END IF;
    EXCEPTION WHEN SQLSTATE 'TXN01' THEN
        NULL;
    END;
    step := NULL;
    RETURN NEXT;
END
$function$
