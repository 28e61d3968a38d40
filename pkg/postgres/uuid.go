package postgres

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// registerUUID has identifiers travel as their 16 bytes. The driver takes this type for any [driver.Valuer], asks it for
// a text and parses that, one by one, which is a tenth of the time that a worker has for an evaluation. The types that
// it assumes are for modes of execution that do not ask the server for them.
func registerUUID(m *pgtype.Map) {
	element := &pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: uuidCodec{}}
	m.RegisterType(element)
	m.RegisterType(&pgtype.Type{Name: "_uuid", OID: pgtype.UUIDArrayOID, Codec: &pgtype.ArrayCodec{ElementType: element}})
	m.RegisterDefaultPgType(uuid.UUID{}, "uuid")
	m.RegisterDefaultPgType([]uuid.UUID{}, "_uuid")
}

type uuidCodec struct{ pgtype.UUIDCodec }

func (c uuidCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(uuid.UUID); ok && format == pgtype.BinaryFormatCode {
		return uuidBytes{}
	}
	return c.UUIDCodec.PlanEncode(m, oid, format, value)
}

func (c uuidCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*uuid.UUID); ok && format == pgtype.BinaryFormatCode {
		return uuidBytes{}
	}
	return c.UUIDCodec.PlanScan(m, oid, format, target)
}

type uuidBytes struct{}

func (uuidBytes) Encode(value any, buf []byte) ([]byte, error) {
	id := value.(uuid.UUID)
	return append(buf, id[:]...), nil
}

func (uuidBytes) Scan(src []byte, target any) error {
	id := target.(*uuid.UUID)
	if copy(id[:], src) != len(id) || len(src) != len(id) {
		return fmt.Errorf("a uuid of %d bytes", len(src)) // NULL has none
	}
	return nil
}
